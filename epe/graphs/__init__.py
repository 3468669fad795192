"""Forward passes captured once and replayed at fixed addresses: a GPU that waits for Python does so once a shape.

A pass is cut where its lane exchanges tensors: what lies between two exchanges is one graph, and the exchanges
are done anew at each replay. Where exchanges are work of the device, a pass is one graph, and the lane one more input
of it. Either way a captured pass serves every lane of its width and position, and a rank that replays may share a lane
with one that does not.
"""

from epe.graphs.call import call_key
from epe.graphs.cuda import CudaGraphs
from epe.graphs.graph import Graph, GraphDevice
from epe.graphs.shelf import Graphs, Statistics

__all__ = ["CudaGraphs", "Graph", "GraphDevice", "Graphs", "Statistics", "call_key"]
