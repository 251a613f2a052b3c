"""The `aplc` command: one short function per subcommand, over the same functions the Python API uses.

Results go to standard output, everything else to standard error. An error is one line and exit code 2.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from aplc.cli import corpora, labels, machine, reviews, training, using
from aplc.cli.help import EXAMPLES, Command
from aplc.errors import AplcError
from aplc.machine import n_processes
from aplc.version import __version__

app = typer.Typer(
    name="aplc",
    help="Tag texts with the right few labels out of hundreds or a million.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(labels.app, name="labels")
for command in (
    *(corpora.data, corpora.encoder, corpora.convert, corpora.split, corpora.inspect),
    *(training.plan, training.pretrain, training.train),
    *(using.evaluate, using.compare, training.ablate, using.predict, reviews.review, using.export, using.serve),
    machine.info,
):
    app.command(cls=Command, epilog=EXAMPLES[command.__name__])(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"aplc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@contextlib.contextmanager
def _processes() -> Iterator[None]:
    """Under `torchrun` or `accelerate launch`: join the other processes; only the first one prints."""
    if n_processes() == 1:
        yield
        return
    from aplc.nn.distributed import launched

    with launched() as world, contextlib.ExitStack() as stack:
        if not world.is_main:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        yield


def _words(error: Exception) -> str:
    """An error of the operating system in the form of our own messages: the file first."""
    if isinstance(error, OSError) and error.filename and error.strerror and error.filename2 is None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def main() -> None:
    """Run the command line; every expected failure is one line on standard error and exit code 2."""
    try:
        with _processes():
            code = typer.main.get_command(app).main(prog_name="aplc", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        # typer brings its own copy of click, older ones share click's: both give usage errors a format_message.
        usage = getattr(error, "format_message", None)
        if usage is None and not isinstance(error, AplcError | OSError):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "aplc")
        message = f"{usage()} (see {command} --help)" if usage else _words(error)
        is_help = type(error).__name__ == "NoArgsIsHelpError"  # `aplc` alone
        print(usage() if usage and is_help else f"aplc: {' '.join(message.split())}", file=sys.stderr)
        code = 2
    sys.exit(code)
