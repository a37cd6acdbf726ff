"""A small Hub on loopback: as much of its protocol as pushing and loading need, and faults on demand.

Large files go through LFS, as on the Hub without Xet. `serve_hub` gives a `Hub`, whose tokens are those of `TOKENS`.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKENS = {
    "hf_writer": {"name": "tester", "role": "write", "orgs": ["acme"]},
    "hf_reader": {"name": "tester", "role": "read", "orgs": ["acme"]},
}
LARGE = (".safetensors", ".png", ".jpg")


@dataclass
class Repo:
    """Commits as path → content; a large file's content is its LFS id."""

    private: bool
    commits: dict[str, dict[str, bytes | str]] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict, title: str, branch: str = "main") -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {title} {sorted(files)}".encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        self.titles.append(title)
        return sha

    def find(self, revision: str) -> str:
        commits = {**{sha: sha for sha in self.commits}, **self.tags, **self.branches}
        if revision not in commits:
            raise Refusal(404, "Invalid rev id", "RevisionNotFound")
        return commits[revision]


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Hub(ThreadingHTTPServer):
    """State of the server; `cut` makes it fall silent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.lock = threading.RLock()
        self.repos: dict[tuple[str, str], Repo] = {}
        self.large: dict[str, bytes] = {}
        self.mend()

    def cut(self, after: int, *, answers: bool = False) -> None:
        """Answer so many requests and close the connection of all that follow.

        Args:
            after: number of requests.
            answers: the first of the others is still done, and only its answer is lost.
        """
        self.left, self.lose_answer = after, answers

    def mend(self) -> None:
        """Answer again."""
        self.left, self.lose_answer = float("inf"), False

    def handle_error(self, request, client_address):
        """Clients that went away are no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments):
        pass

    def _handle(self):
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            if self._is_cut():
                return
            try:
                status, content, headers = self._route(url.path, body)
            except Refusal as error:
                status, content = error.status, {"error": error.message}
                headers = {"X-Error-Message": error.message}
                if error.code:
                    headers["X-Error-Code"] = error.code
            if self.server.left < 0:  # the answer is lost
                self.close_connection = True
                return
        self._answer(status, content, headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _is_cut(self) -> bool:
        if self.server.left <= 0:
            if not self.server.lose_answer:
                self.close_connection = True
                return True
            self.server.lose_answer = False
        self.server.left -= 1
        return False

    def _answer(self, status: int, content, headers: dict) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _route(self, path: str, body: bytes) -> tuple[int, object, dict]:
        if match := re.fullmatch(r"/objects/(\w{64})", path):  # storage, which takes signed addresses and no token
            return self._store(match[1], body)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.user = TOKENS.get(token)
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if match := re.fullmatch(r"(?:/(spaces))?/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self._batch(self._find(match[1] or "models", match[2], write=True), json.loads(body))
        if match := re.fullmatch(r"(?:/(spaces))?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repo = self._find(match[1] or "models", match[2])
            return self._resolve(repo, unquote(match[3]), unquote(match[4]))
        if match := re.fullmatch(r"/api/(models|spaces)/([^/]+/[^/]+)(?:/([^/]+)(?:/([^/]+)(?:/(.+))?)?)?", path):
            kind, repo_id, action, *rest = (unquote(part) if part else "" for part in match.groups())
            repo = self._find(kind, repo_id, write=self.command != "GET")
            return getattr(self, f"_{action or 'revision'}_of")(repo, repo_id, *rest, body=body)
        raise Refusal(404, f"no {self.command} {path} here")

    def _namespaces(self) -> list[str]:
        return [self.user["name"], *self.user["orgs"]] if self.user else []

    def _may_write(self, owner: str) -> None:
        if owner not in self._namespaces() or self.user["role"] != "write":
            raise Refusal(403 if self.user else 401, f"you may not write to {owner}")

    def _find(self, kind: str, repo_id: str, write: bool = False) -> Repo:
        owner = repo_id.partition("/")[0]
        repo = self.server.repos.get((kind, repo_id))
        if repo is None or (repo.private and owner not in self._namespaces()):
            raise Refusal(404 if self.user else 401, "Repository not found", "RepoNotFound")
        if write:
            self._may_write(owner)
        return repo

    def _create(self, request: dict) -> tuple[int, object, dict]:
        kind = {"space": "spaces"}.get(request.get("type"), "models")
        owner = request.get("organization") or self.user["name"]
        repo_id = f"{owner}/{request['name']}"
        self._may_write(owner)
        url = f"{self.server.endpoint}/{repo_id}"
        if (kind, repo_id) in self.server.repos:
            return 409, {"error": "You already created this repo", "url": url}, {}  # `exist_ok` reads the address
        repo = self.server.repos[kind, repo_id] = Repo(private=request.get("visibility") == "private")
        repo.commit({".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        return 200, {"url": url}, {}

    def _preupload_of(self, repo: Repo, repo_id: str, revision: str, _path: str, body: bytes):
        known = {name: self._describe(content) for name, content in repo.commits[repo.find(revision)].items()}
        digests = {name: found.get("lfs", {}).get("sha256", found["blobId"]) for name, found in known.items()}
        files = [
            {
                "path": file["path"],
                "oid": digests.get(file["path"]),  # by which a client sees what it need not commit
                "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        return 200, {"files": files}, {}

    def _batch(self, repo: Repo, request: dict):
        objects = []
        for item in request["objects"]:
            upload = {"upload": {"href": f"{self.server.endpoint}/objects/{item['oid']}", "header": {}}}
            objects.append({**item, **({} if item["oid"] in self.server.large else {"actions": upload})})
        return 200, {"transfer": "basic", "objects": objects}, {}

    def _store(self, oid: str, body: bytes):
        if self.headers.get("Authorization"):
            raise Refusal(400, "the token must not be sent to the storage")
        self.server.large[oid] = body
        return 200, b"", {}

    def _commit_of(self, repo: Repo, repo_id: str, branch: str, _path: str, body: bytes):
        header, *changes = (json.loads(line) for line in body.splitlines())
        head = repo.branches[branch]
        if header["value"].get("parentCommit", head) != head:
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repo.commits[head])
        for change in changes:
            value = change["value"]
            if change["key"] == "deletedFile":
                del files[value["path"]]
            elif change["key"] == "lfsFile":
                if value["oid"] not in self.server.large:
                    raise Refusal(400, "an LFS pointer points to a file that does not exist")
                files[value["path"]] = value["oid"]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        sha = repo.commit(files, header["value"]["summary"], branch)
        url = f"{self.server.endpoint}/{repo_id}/commit/{sha}"
        return 200, {"success": True, "commitOid": sha, "commitUrl": url}, {}

    def _tag_of(self, repo: Repo, repo_id: str, revision: str, _path: str, body: bytes):
        name = json.loads(body)["tag"]
        repo.tags[name] = repo.find(revision)
        return 200, {}, {}

    def _refs_of(self, repo: Repo, repo_id: str, *_rest: str, body: bytes):
        kinds = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
        listed = {
            kind: [{"name": name, "ref": f"refs/{ref}/{name}", "targetCommit": sha} for name, sha in found.items()]
            for kind, (ref, found) in kinds.items()
        }
        return 200, {**listed, "converts": []}, {}

    def _settings_of(self, repo: Repo, repo_id: str, *_rest: str, body: bytes):
        repo.private = json.loads(body)["visibility"] == "private"
        return 200, {}, {}

    def _revision_of(self, repo: Repo, repo_id: str, revision: str, _path: str, body: bytes):
        sha = repo.find(revision or "main")
        files = repo.commits[sha]
        config = json.loads(files.get("config.json", b"{}"))
        siblings = [{"rfilename": name, **self._describe(content)} for name, content in sorted(files.items())]
        info = {"id": repo_id, "sha": sha, "private": repo.private, "siblings": siblings, "tags": [], "gated": False}
        info["config"] = {key: config[key] for key in ("architectures", "auto_map", "model_type") if key in config}
        card = re.match(r"---\n(.*?)\n---\n", files.get("README.md", b"").decode(), re.DOTALL)
        info["cardData"] = yaml.safe_load(card[1]) if card else None
        return 200, info, {}

    def _tree_of(self, repo: Repo, repo_id: str, revision: str, path: str, body: bytes):
        files = repo.commits[repo.find(revision)]
        rows = [
            {"type": "file", "path": name, "oid": described["blobId"], **described}
            for name, described in ((name, self._describe(content)) for name, content in files.items())
            if name.startswith(f"{path}/" if path else "")
        ]
        return 200, rows, {}

    def _resolve(self, repo: Repo, revision: str, path: str):
        sha = repo.find(revision)
        if path not in repo.commits[sha]:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        content = repo.commits[sha][path]
        described = self._describe(content)
        etag = described["lfs"]["sha256"] if "lfs" in described else described["blobId"]
        data = self.server.large[content] if isinstance(content, str) else content
        return 200, data, {"X-Repo-Commit": sha, "ETag": f'"{etag}"'}

    def _describe(self, content: bytes | str) -> dict:
        if isinstance(content, str):
            size = len(self.server.large[content])
            lfs = {"sha256": content, "oid": content, "size": size, "pointerSize": 130}
            return {"size": size, "blobId": content[:40], "lfs": lfs}
        return {"size": len(content), "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A running Hub without repositories."""
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True).start()
        yield hub
        hub.shutdown()
