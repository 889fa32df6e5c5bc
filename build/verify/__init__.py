"""Does an artifact compute what the program computes? ``compare.py`` is arithmetic, ``check.py`` runs the artifact."""
