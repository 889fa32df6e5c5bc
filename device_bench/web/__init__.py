"""Measuring in a browser: the page's files, the server that hands them out, the browsers that open it."""
