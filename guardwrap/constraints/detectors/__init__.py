"""What a text is in, and what must not be in it: its language and reading level, personal data and secrets.

``hits`` finds what must not occur, so that what it finds in a prefix stays in every continuation.
"""
