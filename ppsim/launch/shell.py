"""Words of a shell script: its commands with variables, arrays and continued lines resolved; nothing is run.

A script is read as if it ran without arguments in an empty environment, except for what its #SBATCH lines say.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import reduce
from itertools import pairwise
from typing import Any

from ppsim.base.errors import ConfigError

UNRESOLVED = "\N{REPLACEMENT CHARACTER}"  # marks text that only a shell can know, such as $(nproc)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_RUNNERS = ("source", ".", "bash", "sh")  # of another script
_LOOPS = ("for", "while", "until", "select")
_INNER = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"  # with up to two levels of brackets
_REFERENCE = re.compile(
    rf"\$\(\((?P<sum>{_INNER})\)\)|\$\((?P<command>{_INNER})\)|`(?P<ticks>[^`]*)`"
    r"|\$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#]+)(?:\[(?P<index>[0-9@*]+)\])?"
    r"(?:(?P<sign>:?[-=+?])(?P<other>[^{}]*)|(?P<rest>[^{}]*))\}"
    r"|\$(?P<plain>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$])"
)
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)(\n.*?^[ \t]*\2[ \t]*$)", re.DOTALL | re.MULTILINE)
_TEST = re.compile(r"\[\[\s(.*)\s\]\]|\[\s(.*)\s\]|test\s(.*)", re.DOTALL)
_REDIRECTION = re.compile(r"[0-9]?&?(>>?|<)(&[0-9])?")
_WORD = re.compile(  # escaped or quoted, a comment, a sign, or a part of a word
    r"""\\.?|'[^']*'|"(?:[^"\\]|\\.)*"|(?P<comment>(?<![^\s(;&|])\#[^\n]*)|\[\[|\]\]|&&|\|\||;;|&>|>&|[^\\'"\n;&|()\[\]#>]+|.""",
    re.DOTALL,
)
_SEPARATORS = ("&&", "||", ";;", ";", "&", "|")
_MAX_TEXT = 100_000  # of a variable, and of a statement with its variables resolved
_MAX_NESTED = 8  # references inside references
_SBATCH = {  # what a line `#SBATCH ...` sets
    r"(?:--nodes[= ]|-N ?)(\d{1,6})": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    r"--(?:gpus-per-node|gres)[= ](?:\w+:)*(\d{1,3})": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    r"--ntasks-per-node[= ](\d{1,3})": ("SLURM_NTASKS_PER_NODE",),
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt,
    "-le": operator.le,
}  # fmt: skip
_ARITHMETIC: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: lambda one, other: int(one / other), ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


@dataclass
class Script:
    """Commands of a script as words, and the lines that depend on a condition."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)  # values by name; the words of an array as one text
    # lines that assign or give flags in a loop, or under a condition that only a shell can know
    conditional: list[int] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)  # other files that it reads or runs

    def command(self, programs: tuple[str, ...], flags: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
        """Return the words after a program that a command with one of `flags` calls, and those up to it.

        All words and an empty list if no command calls one of the programs.
        """
        for words in self.commands:
            ends = [index for index, word in enumerate(words) if word.endswith(programs)]
            if ends and (not flags or {*flags} & {*" ".join(words).replace("=", " ").split()}):
                return words[ends[-1] + 1 :], words[: ends[-1] + 1]
        return [word for words in self.commands for word in words], []


def read_script(text: str, documents: bool = False) -> Script:
    """Return the commands and variables of a script; ConfigError for quotes or brackets that stay open.

    It reads the branch of an if or case whose condition holds, and no loop; and with `documents` the lines of its here
    documents, as a script that writes another one has them.
    """

    def replaced(document: re.Match[str]) -> str:
        body = document[4].rpartition("\n")[0].replace("\\$", "$") + "\n"
        return document[3] + (body if documents else "\n" * body.count("\n"))

    script = Script()
    for pattern, names in _SBATCH.items():
        if found := re.search(rf"^#SBATCH\s+(?:.*\s)?{pattern}", text, re.MULTILINE):
            script.variables.update(dict.fromkeys(names, found[1]))
    reader = _Reader(script)
    for line, statement, sign in _statements(_DOCUMENT.sub(replaced, text)):
        reader.read(line, statement, sign)
    return script


@dataclass
class _Branching:
    """An if, a case or a loop: whether its branch runs, and whether an earlier one did; None if that is unknown."""

    runs: bool | None = True
    ran: bool | None = False
    is_condition: bool = False  # its condition is being read
    subject: str | None = None  # of a case
    patterns: list[str] | None = None  # of a case whose next branch is being read

    def enter(self, condition: bool | None) -> None:
        """Begin a branch, which runs if its condition holds and no earlier branch ran."""
        self.runs, self.is_condition, self.patterns = _and(_not(self.ran), condition), False, None
        self.ran = _or(self.ran, self.runs)


class _Reader:
    """The statements of a script, read one after the other."""

    def __init__(self, script: Script):
        self.script = script
        self.blocks: list[_Branching] = []
        self.status: bool | None = True  # of the last statement

    def read(self, line: int, text: str, sign: str = "") -> None:
        """Read one statement; `sign` is what separates it from the one before."""
        block = self.blocks[-1] if self.blocks else None
        word, rest = [*text.split(maxsplit=1), "", ""][:2]
        if block and block.subject is not None and (sign == ";;" or block.patterns is not None) and word != "esac":
            self._read_pattern(block, line, text)
        elif block and word in ("fi", "done", "esac"):
            self.blocks.pop()
        elif word == "if":
            self.blocks.append(_Branching(is_condition=True))
            self.read(line, rest)
        elif word == "case":
            subject, _, rest = re.sub(r"\sin(\s|$)", "\0", rest, count=1).partition("\0")
            self.blocks.append(_Branching(True, subject=" ".join(_words(subject, self.script.variables)), patterns=[]))
            self.read(line, rest)
        elif word in _LOOPS:
            self.blocks.append(_Branching(runs=None))
        elif block and word in ("then", "else", "elif", "do"):
            if word == "elif":
                block.runs = block.is_condition = True
            elif word != "do":
                block.enter(self.status if word == "then" else True)
            self.read(line, rest)
        elif text:
            self._run(line, text, sign)

    def _read_pattern(self, block: _Branching, line: int, text: str) -> None:
        """Read `PATTERN | PATTERN ) STATEMENT` of a case, of which each part may be a statement."""
        pattern, closed, rest = text.partition(")")
        block.patterns = [*(block.patterns or ()), pattern.strip().lstrip("(").strip()]
        if closed:
            words = ["".join(_split(one)) for one in block.patterns]
            subject = block.subject or ""
            known = UNRESOLVED not in subject
            block.enter(any(fnmatchcase(subject, one) for one in words) if known else None)
            self.read(line, rest.strip())

    def _run(self, line: int, text: str, sign: str) -> None:
        """Read a statement that is no keyword, unless the blocks around it or `&&` and `||` before it exclude it."""
        runs = {"&&": self.status, "||": _not(self.status)}.get(sign, True)
        for block in self.blocks:
            runs = _and(runs, block.runs)
        if runs is None and ("--" in text or _ASSIGNMENT.match(text)):
            self.script.conditional.append(line)
        if not runs:
            self.status = self.status if runs is False else None
            return
        self.status = self._holds(text)
        if _TEST.fullmatch(text.removeprefix("! ").strip()) or (self.blocks and self.blocks[-1].is_condition):
            return
        self.status = True
        variables = self.script.variables
        if _assigned(text, variables):
            return
        words = _words(text, variables)
        files = [word for before, word in pairwise(words) if before in _RUNNERS and word[:1] not in "-&|"]
        self.script.sourced += [word.replace(f"{UNRESOLVED}/", "") for word in files]
        if words[:1] in (["source"], ["."]):
            return
        if words[:2] == ["set", "--"]:
            variables |= {str(number): word for number, word in enumerate(words[2:], 1)}
            variables["@"] = shlex.join(words[2:])
        elif words and words[0] not in ("echo", "printf"):
            self.script.commands.append(words)

    def _holds(self, text: str) -> bool | None:
        """Return whether a test such as `[ $X = 1 ]` holds; None if that is unknown, or for other commands."""
        if text.startswith("! "):
            return _not(self._holds(text[2:].strip()))
        if text.startswith("((") and text.endswith("))"):
            value = _resolved(f"$({text})", _WithoutOthers(self.script.variables))
            return None if UNRESOLVED in value else value != "0"
        if not (found := _TEST.fullmatch(text)):
            return None
        inner = next(part for part in found.groups() if part is not None)
        parts = (re.split(r"\s(?:&&|-a)\s", part) for part in re.split(r"\s(?:\|\||-o)\s", inner))
        return reduce(_or, (reduce(_and, map(self._compares, part)) for part in parts))

    def _compares(self, text: str) -> bool | None:
        words = _split(_resolved(text, _WithoutOthers(self.script.variables)))
        if words[:1] == ["!"]:
            return _not(self._compares(text.strip().removeprefix("!").strip()))
        if any(UNRESOLVED in word for word in words):
            return None
        if len(words) < 3 and words[:1] in (["-z"], ["-n"]):
            return any(words[1:]) == (words[0] == "-n")
        if len(words) < 2:
            return any(words)
        one, sign, other = words if len(words) == 3 else ["", *words, ""][:3]
        if sign in ("=", "==", "!="):
            return fnmatchcase(one, other) == (sign != "!=")
        if sign in _COMPARISONS and re.fullmatch(r"-?\d{1,18} -?\d{1,18}", f"{one} {other}"):
            return _COMPARISONS[sign](int(one), int(other))
        return None


class _WithoutOthers(dict[str, str]):
    """Variables for a condition, in which unset ones are empty."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, "")


# Logic of three values; None: only a shell can know.


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _and(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _or(one: bool | None, other: bool | None) -> bool | None:
    return _not(_and(_not(one), _not(other)))


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the statements with the line on which each starts, and what separates it from the one before.

    That is `&&`, `||`, `;;` or another sign. Comments are left out.
    """
    start, line, current, brackets, sign, is_test = 1, 1, list[str](), 0, "", False
    for match in _WORD.finditer(text.replace("\r\n", "\n")):
        word = match[0]
        line += word.count("\n")
        if word in ("'", '"'):
            raise ConfigError(f"line {start}: a quote {word} is not closed; close it before the script ends")
        if word in ("[[", "]]"):
            is_test = word == "[["
        elif word in ("(", ")"):
            brackets = max(0, brackets + (1 if word == "(" else -1))
        elif word == "\n" and brackets:
            word = " "
        elif word == "\n" or (word in _SEPARATORS and not (is_test or brackets)):
            if statement := "".join(current).replace("\\\n", " ").strip():
                yield start, statement, sign
                sign = ""
            if word != "\n":
                sign = word if len(word) > 1 else sign or word
            current, start, is_test = [], line, False
            continue
        current.append("" if match["comment"] else word)
    if statement := "".join(current).replace("\\\n", " ").strip():
        yield start, statement, sign


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
    if not value.startswith("(") and len(_words_with_references(value)) > 1:  # NAME=value NAME=value command ...
        for word in _words_with_references(text):
            if not (given := _ASSIGNMENT.fullmatch(word)):
                break
            variables[given[1]] = _resolved(given[3], variables)
        return first in _DECLARATIONS
    if value.startswith("("):
        new = " ".join(map(shlex.quote, _words(value.strip()[1:-1], variables)))
    else:
        new = "".join(_split(_resolved(value, variables))) if value[:1] in "'\"" else _resolved(value, variables)
    variables[name] = f"{variables.get(name, '')}{' ' if value.startswith('(') else ''}{new}" if added else new
    if len(variables[name]) > _MAX_TEXT:
        raise ConfigError(f"the variable {name} grows beyond {_MAX_TEXT} letters; give the launch command alone")
    return True


def _words(statement: str, variables: dict[str, str]) -> list[str]:
    """Return the words of a statement with variables resolved, without redirections.

    A word that is a command line, or a flag with its argument, becomes its words.
    """
    whole = re.sub(r'"(\$\{\w+\[@\]\})"', r"\1", statement)
    found: list[str] = []
    words = iter(_split(_resolved(whole, variables)))
    for word in words:
        if redirects := _REDIRECTION.match(word):
            if redirects[0] == word and not redirects[2]:
                next(words, None)
        elif " --" in word or re.match(r"--\S+\s", word):
            found += _split(_resolved(word, variables))
        else:
            found.append(word)
    return found


def _words_with_references(text: str) -> list[str]:
    """Return the words of a text whose references are not replaced, and may contain blanks."""
    found = [match[0] for match in _REFERENCE.finditer(text)]
    numbers = iter(range(len(found)))
    masked = _REFERENCE.sub(lambda _: f"\1{next(numbers)}\2", text.translate({1: None, 2: None}))
    return [re.sub("\1([0-9]+)\2", lambda one: found[int(one[1])], word) for word in _split(masked)]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"(?<!\\)\\$", "", text))  # a backslash before a blank at the end of a line
    except ValueError as error:
        raise ConfigError(f"{text[:60]!r} cannot be split into words: {error}; close each quote") from None


def _resolved(text: str, variables: dict[str, str], depth: int = 0) -> str:
    """Return a text with the references outside single quotes replaced by values."""
    parts = re.split(r"('[^']*')", text) if '"' not in text else [text]
    return "".join(part if part[:1] == "'" else _replaced(part, variables, depth) for part in parts)


def _replaced(text: str, variables: dict[str, str], depth: int) -> str:
    """Return a text with its references replaced, the inner ones of nested references first."""
    for _ in range(_MAX_NESTED):
        before, parts, length = text, list[str](), 0
        end = 0
        for match in _REFERENCE.finditer(text):
            parts += [text[end : match.start()], _value(match, variables, depth)]
            end, length = match.end(), length + len(parts[-1])
            if length > _MAX_TEXT:
                raise ConfigError(f"a statement grows beyond {_MAX_TEXT} letters; give the launch command alone")
        text = "".join([*parts, text[end:]])
        if text == before or "${" not in text:
            break
    return text


def _value(match: re.Match[str], variables: dict[str, str], depth: int) -> str:
    if match["sum"] is not None:
        return _computed(_resolved(match["sum"], variables, depth + 1) if depth < _MAX_NESTED else "", variables)
    name = match["braced"] or match["plain"]
    if name in ("@", "*"):  # the script's own arguments
        return variables.get("@") or ""
    if name is None or match["rest"]:
        return UNRESOLVED
    value, sign = variables.get(name), match["sign"]
    is_set = bool(value) if sign and sign[0] == ":" else value is not None
    if sign and sign[-1] == "?":  # unset, a shell would stop there
        return (value or "") if is_set else UNRESOLVED
    if sign and is_set == (sign[-1] == "+"):
        other = _resolved(match["other"], variables, depth + 1) if depth < _MAX_NESTED else UNRESOLVED
        if sign[-1] == "=":
            variables[name] = other
        return other
    if sign and sign[-1] == "+":
        return ""
    if value is not None and match["index"] and match["index"].isdigit():
        return [*_split(value)[int(match["index"][:6]) :], UNRESOLVED][0]
    return UNRESOLVED if value is None else value


def _computed(text: str, variables: dict[str, str]) -> str:
    """Return the value of an arithmetic expression with integers."""
    text = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0]) or UNRESOLVED, text)
    if not re.fullmatch(r"[\d\s*+/%<>=!?:&|()-]{1,200}", text):
        return UNRESOLVED
    text = re.sub(r"([^?]+)\?([^?:]+):([^?:]+)", r"(\2) if (\1) else (\3)", text)
    text = text.replace("/", "//").replace("&&", " and ").replace("||", " or ").strip()
    try:
        return str(int(_evaluated(ast.parse(text, mode="eval").body)))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return UNRESOLVED


def _evaluated(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluated(inner)
        case ast.BinOp(left=one, op=sign, right=other) | ast.Compare(left=one, ops=[sign], comparators=[other]):
            if type(sign) in _ARITHMETIC:
                return _ARITHMETIC[type(sign)](_evaluated(one), _evaluated(other))
        case ast.BoolOp(op=sign, values=values):
            found = [bool(_evaluated(value)) for value in values]
            return all(found) if isinstance(sign, ast.And) else any(found)
        case ast.IfExp(test=test, body=one, orelse=other):
            return _evaluated(one if _evaluated(test) else other)
    raise ValueError("not an arithmetic expression of integers")
