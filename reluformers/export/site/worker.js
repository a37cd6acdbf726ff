// keeps the files of this release of the page, so that it works without a network
const RELEASE = "{{ release }}";
const FILES = {{ files }};

self.addEventListener("install", (event) => {
  event.waitUntil(
    caches.open(RELEASE)
      .then((cache) => Promise.all(FILES.map(async ([url, integrity]) => {
        const request = new Request(url, integrity ? { integrity, mode: "cors", credentials: "omit" } : {});
        await cache.add(request);
      })))
      .then(() => self.skipWaiting()),
  );
});

self.addEventListener("activate", (event) => {
  event.waitUntil(
    caches.keys()
      .then((names) => Promise.all(names.filter((name) => name !== RELEASE && name.startsWith("reluformers-")).map((name) => caches.delete(name))))
      .then(() => self.clients.claim()),
  );
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  event.respondWith(caches.match(event.request, { ignoreSearch: true }).then((cached) => cached ?? fetch(event.request)));
});
