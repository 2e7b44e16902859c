"""`qwenmtp completion`: completions for a shell, made from the parser. Looks at no file and no model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from shlex import quote

SHELLS = ("bash", "zsh", "fish")


def add_arguments(p: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments."""
    p.add_argument("shell", choices=SHELLS, help="the shell that will evaluate the output")


def run(args: argparse.Namespace) -> int:
    """Prints the completions of the parser that `args` came from."""
    text = script(args.root, args.shell)
    print(json.dumps({"shell": args.shell, "script": text}) if args.json else text)
    return 0


def subparsers(root: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser by name."""
    return next(dict(action.choices) for action in root._actions if isinstance(action, argparse._SubParsersAction))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Arguments that a person may be told of: all but `--help`."""
    return (a for a in parser._actions if not isinstance(a, (argparse._HelpAction, argparse._SubParsersAction)))


def script(root: argparse.ArgumentParser, shell: str) -> str:
    """What the shell has to evaluate. `shell` is one of SHELLS."""
    if shell == "fish":
        return _fish(root)
    head = (
        "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    )
    return head + _bash(root)


def _bash(root: argparse.ArgumentParser) -> str:
    commands = subparsers(root)
    values: list[str] = []
    options: list[str] = []
    for name, parser in commands.items():
        offered: list[str] = []
        for action in actions(parser):
            choices = _choices(action)
            offered += action.option_strings or choices
            if choices:
                values += [f'    "{name} {flag}") words="{" ".join(choices)}" ;;' for flag in action.option_strings]
        options.append(f'    {name}) words="{" ".join([*offered, "--help"])}" ;;')
    lines = [
        "_qwenmtp() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        '  case "${COMP_WORDS[1]} $prev" in',
        *values,
        "  esac",
        '  if [ "$COMP_CWORD" = 1 ]; then',
        f'    words="{" ".join([*commands, "--help", "--version"])}"',
        '  elif [ -z "$words" ]; then case "${COMP_WORDS[1]}" in',
        *options,
        "  esac; fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        "complete -o default -F _qwenmtp qwenmtp",
    ]
    return "\n".join(lines)


def _fish(root: argparse.ArgumentParser) -> str:
    lines = []
    for name, parser in subparsers(root).items():
        lines.append(f"complete -c qwenmtp -n __fish_use_subcommand -a {name} -d {quote(parser.description or '')}")
        here = f"complete -c qwenmtp -n '__fish_seen_subcommand_from {name}'"
        for action in actions(parser):
            choices = _choices(action)
            wanted = f" -xa '{' '.join(choices)}'" if choices else ""
            flags = "".join(f" -l {flag.removeprefix('--')}" for flag in action.option_strings)
            if flags or wanted:
                lines.append(f"{here}{flags}{wanted} -d {quote((action.help or '') % {'default': action.default})}")
    return "\n".join(lines)


def _choices(action: argparse.Action) -> Sequence[str]:
    return [str(choice) for choice in action.choices or ()]
