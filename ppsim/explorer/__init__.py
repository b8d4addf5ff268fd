"""The live page: a small server that makes a config from the page's state, calls the library and sends the result."""
