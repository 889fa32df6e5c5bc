"""The report that people look at: one HTML file, and the same as Markdown and JSON.

``sources`` reads measurements, manifests and budgets; ``gather`` turns them into the :class:`Report` of ``data``;
``page``, ``markdown`` and ``as_json`` write that down. Nothing that a result file says is trusted: every
string passes ``text.clean`` on its way into the report, and is escaped again on its way out of it.
"""
