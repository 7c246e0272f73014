"""All ways to compute a workload: fusion, sketch rules, the array model of a space, search strategies."""
