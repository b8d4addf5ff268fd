"""The program `ppsim`, also as `python -m ppsim`: loads the command line and runs it."""

import os

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def main() -> None:
    """Run the command line; who interrupts it while it loads gets an exit status and no traceback."""
    try:
        import signal

        # While modules load an exception may come out as another one: NumPy makes an ImportError of it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        from ppsim.cli import run_command_line
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    run_command_line()


if __name__ == "__main__":
    main()
