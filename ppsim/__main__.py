"""Entry of the program `ppsim` and of `python -m ppsim`: it loads the command line and runs it."""

import os

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def main() -> None:
    """Run the command line; an interrupt while it loads gives an exit status and no traceback."""
    try:
        import signal

        # No exception here: NumPy turns an interrupt during its import into an ImportError.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        from ppsim.cli import run_command_line
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    run_command_line()


if __name__ == "__main__":
    main()
