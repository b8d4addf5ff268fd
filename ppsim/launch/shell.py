"""Words of a shell script: its commands with variables, arrays and continued lines resolved; nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from ppsim.base.errors import ConfigError

UNRESOLVED = "\N{REPLACEMENT CHARACTER}"  # stands for what only a shell can know, such as $(nproc)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_OPENING, _CLOSING = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
_REFERENCE = re.compile(
    r"\$\(\((?P<sum>[^()]*)\)\)|\$\((?P<command>[^()]*)\)|`(?P<ticks>[^`]*)`"
    r"|\$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#]+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?(?P<rest>[^{}]*)\}"
    r"|\$(?P<plain>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$])"
)
_MAX_TEXT = 100_000  # of a variable, and of a statement with its variables resolved


@dataclass
class Script:
    """Commands of a script as words, its variables, and the numbers of lines that depend on a condition."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    conditional: list[int] = field(default_factory=list)


def read_script(text: str) -> Script:
    """Return the commands and variables of a script; ConfigError for quotes or brackets that stay open.

    Lines inside if, for, while and case are not read: `conditional` lists those that assign or give flags.
    """
    script, depth = Script(), 0
    for line, statement in _statements(text):
        first = statement.split(maxsplit=1)[0]
        if first in _CLOSING:
            depth = max(0, depth - 1)
        elif first in _OPENING:
            depth += 1
        elif depth:
            if "--" in statement or _ASSIGNMENT.match(statement):
                script.conditional.append(line)
        elif not _assigned(statement, script.variables):
            words = _words(statement, script.variables)
            script.commands.extend([words] if words else [])
    return script


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the statements with the line on which each starts; comments are left out."""
    text = re.sub(r"\\\r?\n", " \v", text)  # a vertical tab keeps the count of lines
    start, line, current, quote, brackets = 1, 1, [], "", 0
    position = 0
    while position < len(text):
        letter = text[position]
        position += 1
        line += letter in "\n\v"
        if quote:
            quote = "" if letter == quote else quote
        elif letter == "\\":
            current.append(letter)
            letter, position = text[position : position + 1], position + 1
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (not current or current[-1] in " \t\n\v("):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        elif letter in "()":
            brackets = max(0, brackets + (1 if letter == "(" else -1))
        elif letter in "\n;&|" and not brackets:
            if statement := "".join(current).replace("\v", " ").strip():
                yield start, statement
            current, start = [], line
            continue
        if not current and letter in " \t":
            continue
        current.append(" " if letter == "\n" and brackets else letter)
    if quote:
        raise ConfigError(f"line {start}: a quote {quote} is not closed; close it before the script ends")
    if statement := "".join(current).replace("\v", " ").strip():
        yield start, statement


def _assigned(statement: str, variables: dict[str, str]) -> bool:
    """Return whether the statement assigns variables, and note their values, each as text that a shell would read."""
    first, _, rest = statement.partition(" ")
    text = rest.strip() if first in _DECLARATIONS else statement
    while text.startswith("-") and first in _DECLARATIONS:
        text = text.partition(" ")[2].strip()
    match = _ASSIGNMENT.fullmatch(text)
    if not match:
        return first in _DECLARATIONS
    name, added, value = match.groups()
    if not value.startswith("(") and len(_split(value)) > 1:  # NAME=value NAME=value command ...
        for word in _split(statement):
            if not (given := _ASSIGNMENT.fullmatch(word)):
                break
            variables[given[1]] = _resolved(given[3], variables)
        return False
    if value.startswith("("):
        new = " ".join(map(shlex.quote, _words(value.strip()[1:-1], variables)))
    else:
        new = "".join(_split(_resolved(value, variables))) if value[:1] in "'\"" else _resolved(value, variables)
    variables[name] = f"{variables.get(name, '')}{' ' if value.startswith('(') else ''}{new}" if added else new
    if len(variables[name]) > _MAX_TEXT:
        raise ConfigError(f"the variable {name} grows beyond {_MAX_TEXT} letters; give the launch command alone")
    return True


def _words(statement: str, variables: dict[str, str]) -> list[str]:
    """Return the words of a statement with variables resolved; a word that is a command line becomes its words."""
    whole = re.sub(r'"(\$\{\w+\[@\]\})"', r"\1", statement)
    return [
        part for word in _split(_resolved(whole, variables)) for part in ([word] if " --" not in word else _split(word))
    ]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"(?<!\\)\\$", "", text))  # a backslash before a blank at the end of a line
    except ValueError as error:
        raise ConfigError(f"{text[:60]!r} cannot be split into words: {error}; close each quote") from None


def _resolved(text: str, variables: dict[str, str], depth: int = 0) -> str:
    """Return a text with the references outside single quotes replaced by values."""
    parts = re.split(r"('[^']*')", text) if '"' not in text else [text]
    return "".join(
        part if part[:1] == "'" else _REFERENCE.sub(lambda one: _value(one, variables, depth), part) for part in parts
    )


def _value(match: re.Match[str], variables: dict[str, str], depth: int) -> str:
    if match["sum"] is not None:
        names = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: variables.get(name[1], UNRESOLVED), match["sum"])
        return _computed(names)
    name = match["braced"] or match["plain"]
    if name in ("@", "*"):  # the script's own arguments
        return ""
    if name is None or match["rest"]:
        return UNRESOLVED
    value = variables.get(name)
    if value is None and match["default"] is not None:
        return _resolved(match["default"], variables, depth + 1) if depth < 10 else UNRESOLVED
    return UNRESOLVED if value is None else value


def _computed(text: str) -> str:
    """Return the value of sums, differences, products and quotients of integers."""
    if not re.fullmatch(r"[\d\s*+/-]{1,200}", text) or "**" in text:
        return UNRESOLVED
    numbers: list[int] = []
    signs = "+"
    for sign, number in re.findall(r"([*+/-]?)\s*(\d+)", text):
        value = int(number)
        if sign in ("*", "/") and numbers:
            if sign == "/" and not value:
                return UNRESOLVED
            numbers[-1] = numbers[-1] * value if sign == "*" else int(numbers[-1] / value)
        else:
            numbers.append(-value if sign == "-" else value)
    return str(sum(numbers)) if signs and numbers else UNRESOLVED
