"""One way to compute a workload: schedule steps, loop programs and their verifier, LLVM IR, machine code, targets."""
