"""The doors of people with a browser: the start page, the session, and the API's documentation."""
