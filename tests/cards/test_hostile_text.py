"""What others wrote stands in a card as text: it makes no HTML, link, heading or cell."""

import pytest

from reluformers.publish.markdown import code, escape, paragraph

MarkdownIt = pytest.importorskip("markdown_it").MarkdownIt

HOSTILE = [
    "<script>alert(1)</script>",
    "<!-- the rest is gone",
    r"a \| b || c \\",
    "`code` ``` ~~~",
    "two\nlines\r\n\n# heading\n\n| a |\n|---|\n",
    "](http://evil.example) [x](http://evil.example) ![i](http://evil.example/i.png)",
    "---\nlicense: mit\n---",
    "{{ 7 * 7 }} {% raw %}",
    "'\"%@&*!: [a, b] {c: d}",
    "a\u2028b\x85c\x0bd\x00",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_escaped_text_reads_as_it_was_written(text):
    shown = " ".join(text.replace("\x00", "").split())
    renderer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for markdown in (paragraph(text), f"¶ {escape(text)}", f"¶ {code(text)}"):
        start, inline, end = renderer.parse(markdown)
        assert (start.type, end.type) == ("paragraph_open", "paragraph_close")
        assert {part.type for part in inline.children} <= {"text", "text_special", "code_inline"}
        read = "".join(part.content for part in inline.children)
        assert " ".join(read.removeprefix("¶").split()) == shown
