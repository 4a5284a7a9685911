package pools

// PoolState is whether a pool is in use.
type PoolState string

// The states of a pool.
const (
	// PoolReady: in use.
	PoolReady PoolState = "Ready"
	// PoolOverlaps: not used, because it overlaps an older pool.
	PoolOverlaps PoolState = "Overlapping"
	// PoolInvalid: not used, because two of its own ranges overlap.
	PoolInvalid PoolState = "Invalid"
)

// PoolStatus is what became of a pool. Counts are at most the largest int64.
type PoolStatus struct {
	Name  string
	State PoolState
	// Overlaps is the older pool that this one overlaps, when State is PoolOverlaps.
	Overlaps string
	// Assigned is how many addresses Services hold from the pool, each counted once however many share it.
	AssignedIPv4, AssignedIPv6 int64
	// Available is how many addresses are free. A pool not in use has none.
	AvailableIPv4, AvailableIPv6 int64
	// Exhausted lists the families the pool has, with no address free.
	Exhausted []Family
	// Draining lists the Services that keep an address which no pool admits them to any more, in order.
	Draining []ServiceKey
}
