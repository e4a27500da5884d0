"""
Metrics over many pairs
=======================

Accumulate metrics, merge the results of several workers and print them.
"""

from fullfield import estimate
from fullfield.metrics import FlowMetrics
from fullfield.testing import sample_textured_scene

workers = [FlowMetrics(), FlowMetrics()]
for seed in range(4):
    scene = sample_textured_scene(120, 200, seed=seed)
    flow = estimate(scene.frame1, scene.frame2, preset="fast")
    workers[seed % 2].update(flow.flow, scene.flow, scene.valid, scene.occluded)

total = workers[0]
total.merge(workers[1])
for name, value in total.compute().items():
    print(f"{name:>14} {value:10.4f}")
