"""Entry point of `ppsim` and `python -m ppsim`."""

import os

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def main() -> None:
    """Load and run the command line; an interrupt meanwhile gives an exit status and no traceback."""
    try:
        import signal

        # NumPy would turn an exception during its import into an ImportError. Background jobs of a shell ignore SIGINT.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        from ppsim.cli import run_command_line
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    run_command_line()


if __name__ == "__main__":
    main()
