"""The command line: which commands there are, and how a user's mistake is told: one line on stderr, exit code 2."""

import sys
from importlib import import_module
from typing import Any, cast

import typer
from pydantic import ValidationError

from glassformer import __version__
from glassformer.cli.name import command
from glassformer.errors import GlassformerError
from glassformer.spec import describe

COMMANDS: dict[str, str] = {
    "prepare": "prepare",
    "train": "train",
    "prove-resume": "prove",
    "generate": "generate",
    "chat": "chat",
    "fill": "fill",
    "embed": "embed",
    "eval": "evaluate",
    "tokens": "tokens",
    "describe": "describe",
    "export": "export",
    "pull": "pull",
    "demo": "demo",
}
"""Each command by its name, and the file in `cli/` that has it, as a function named like the file."""


USAGE: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What is raised for a command line that doesn't parse; some versions of typer bring a click of their own."""


def build_app(*names: str) -> typer.Typer:
    """The app with some commands (all when none is named), so that one command needn't wait for the imports of all."""
    app = typer.Typer(
        name="glassformer",
        help="The whole Transformer: train it, run it, look inside it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )

    @app.callback()
    def options(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    ) -> None:
        if version:
            typer.echo(__version__)
            raise typer.Exit

    for name in names or COMMANDS:
        module = COMMANDS[name]
        app.command(name)(getattr(import_module(f"glassformer.cli.{module}"), module))
    return app


def main() -> None:
    """Run the command line; mistakes of the user end in one line and exit code 2."""
    named = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in COMMANDS else None
    if sys.argv[1:] == ["--version"]:
        typer.echo(__version__)
        return
    try:
        # By itself the library would answer a wrong option with a box of six lines.
        done = build_app(*([named] if named else []))(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.exit(done if isinstance(done, int) else 0)
    except USAGE as error:
        what = cast("Any", error).format_message().replace("Value error, ", "")
        _fail(f"{what} (see {command()} {f'{named} ' if named else ''}--help)")
    except GlassformerError as error:
        _fail(str(error))
    except ValidationError as error:
        _fail(describe(error))
    except (MemoryError, RuntimeError) as error:
        if "allocate memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        _fail("not enough memory for this (choose smaller sizes)")
    except KeyboardInterrupt:  # while the libraries are still being imported: a command that runs ends in its own way
        _fail("interrupted", code=130)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a path that the system refuses, wherever it is first looked at
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str, code: int = 2) -> None:
    typer.echo(f"glassformer: {' '.join(message.split())}", err=True)
    sys.exit(code)
