"""The command line against a controller's end of the link, on real gRPC and a real munged.

Here: what `vgpu` asks for, what it prints, and how it ends.
Not here: the controller's own decisions; those are tests/integration/controller.
"""
