"""Entry point of `ppsim` and `python -m ppsim`."""

import os

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def main() -> None:
    """Load and run the command line; a signal meanwhile gives an exit status and no traceback."""
    try:
        import signal

        # NumPy would turn an exception during its import into an ImportError. Jobs of shells ignore SIGINT or SIGHUP.
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, lambda number, _: os._exit(128 + number))
        from ppsim.cli import run_command_line
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    run_command_line()


if __name__ == "__main__":
    main()
