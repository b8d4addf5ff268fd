"""The live page: a small server that turns a page's state into a config, calls the library, and sends the result."""
