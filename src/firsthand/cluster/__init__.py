"""More than one machine, on Ray: replicas behind one door, and a model split over workers.

Owns: where engines are, who answers what, what happens when one is lost. Needs the extra `ray`.
May not know: how tokens are made (`engine/`); nothing below imports Ray.
Read next: docs/cluster.md.
"""
