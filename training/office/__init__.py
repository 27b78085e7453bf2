"""Documents of an office, from seeds: what a page says and what can be asked, apart from how an engine sets it.

`document.py` is the page's content, `registry.py` the kinds (one file each in `kinds/`), `canvas_engine.py` and
`pdf_engine.py` set it. Questions are in free wordings and hold only if every part that they need was really drawn;
every kind also asks for things that its page leaves out.
"""
