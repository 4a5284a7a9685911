// Package loop is what the control loops of ironlb-ccm have in common.
//
// A loop is one goroutine that owns its state. Events only trigger it, through a channel of size one (Trigger). A loop
// that fails retries with a Backoff. It ticks its Liveness at every pass and while it waits: a loop that stalls for two
// minutes fails the probe, and the process is replaced.
package loop
