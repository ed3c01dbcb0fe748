"""The engine `ray`: every stage is a detached actor of a Ray cluster, which starts our worker process."""
