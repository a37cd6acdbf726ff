"""A saved folder behind HTTP: the endpoint's own handler, and a queue that joins the requests that wait."""
