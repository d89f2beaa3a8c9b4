"""Bytes to text: UTF-8, UTF-16, or what charset-normalizer detects; Markdown and plain text files."""

import codecs
import re
from datetime import date

import yaml
from charset_normalizer import from_bytes

from retrievers.readers.parsed import Parsed, UnreadableFile
from retrievers.records import Scalar

_BOMS = [(codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")]
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f]")
_SAMPLE = 200_000
_MAX_LINE = 1_000_000
_TITLE_LINES = 40
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\n(.{1,20000}?)\n---[ \t]*(?:\n|$)", re.DOTALL)


def decode(raw: bytes) -> str:
    """Decode text of unknown encoding; where lines differ in theirs, each by its own.

    Raises:
        UnreadableFile: It is binary.
    """
    encoding = next((name for bom, name in _BOMS if raw.startswith(bom)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        text = _decode_unknown(raw)
    if len(_CONTROLS.findall(text[:_SAMPLE])) > len(text[:_SAMPLE]) / 100:
        raise UnreadableFile("binary, not text")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


def read_text(raw: bytes, *, markdown: bool) -> Parsed:
    """Read a Markdown or plain text file; the title is its first heading, or stands in front matter.

    Front matter is YAML between two lines `---` at the start; what it says in single values or lists is metadata.

    Raises:
        UnreadableFile: It is binary, or one line without end.
    """
    text = decode(raw)
    check_lines(text)
    if not markdown:
        return Parsed("", text, {"type": "text"})
    metadata, text = _split_front_matter(text)
    title = metadata.pop("title", "")
    return Parsed(str(title) or _find_title(text), text, {"type": "markdown", **metadata})


def check_lines(text: str) -> None:
    """Refuse text with a line that nobody wrote.

    Raises:
        UnreadableFile: A line has more than a million characters.
    """
    longest = max(map(len, text.splitlines()), default=0)
    if longest > _MAX_LINE:
        raise UnreadableFile(f"a line of {longest:,} characters is not prose (the limit is {_MAX_LINE:,})")


def _decode_unknown(raw: bytes) -> str:
    if b"\x00" in raw[:_SAMPLE]:
        raise UnreadableFile("binary, not text")
    if (text := _decode_chinese(raw)) is not None:
        return text
    best = from_bytes(raw[:_SAMPLE], cp_isolation=["big5", "shift_jis", "euc_kr", "cp1252", "cp1251"]).best()
    if best is not None:
        try:
            return raw.decode(best.encoding)
        except UnicodeDecodeError:
            pass
    return "".join(_decode_line(line) for line in raw.splitlines(keepends=True))


def _decode_chinese(raw: bytes) -> str | None:
    """Decode GB 18030 when it is that: most characters are then of its common half, lead bytes B0 to D7.

    A detector often takes short Chinese text for a western or another Asian encoding.
    """
    try:
        text = raw.decode("gb18030")
    except UnicodeDecodeError:
        return None
    han = [character for character in text[:_SAMPLE] if "\u4e00" <= character <= "\u9fff"]
    common = sum(0xB0 <= character.encode("gb18030")[0] <= 0xD7 for character in han)
    others = sum(not character.isascii() for character in text[:_SAMPLE]) - len(han)
    return text if common > 0.7 * len(han) and len(han) > 2 * others else None


def _decode_line(line: bytes) -> str:
    for encoding in ("utf-8", "gb18030"):
        try:
            return line.decode(encoding)
        except UnicodeDecodeError:
            continue
    return line.decode("cp1252", "replace")


def _split_front_matter(text: str) -> tuple[dict[str, Scalar], str]:
    """Split front matter off; text that is none, or no YAML, stays."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text
    try:
        found = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, text
    if not isinstance(found, dict):
        return {}, text
    read = {str(key): _read_value(value) for key, value in found.items() if key != "source"}  # that names the file
    return {key: value for key, value in read.items() if value is not None}, text[match.end() :]


def _read_value(value: object) -> Scalar | None:
    """Read a single value, or a list of them as text; anything deeper is left out."""
    if isinstance(value, list):
        parts = [_read_value(one) for one in value if not isinstance(one, list)]
        return ", ".join(str(part) for part in parts if part is not None) or None
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, str | int | float) else None


def _find_title(text: str) -> str:
    lines = text.lstrip().splitlines()[:_TITLE_LINES]
    return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
