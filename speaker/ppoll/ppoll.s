// With an assembly file, the compiler accepts functions without a body: those of the runtime in ppoll.go.
