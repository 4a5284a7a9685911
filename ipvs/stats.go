package ipvs

// Stats are the counters of a virtual or real server since it was added. Drivers may count connections and packets with
// 32 bits; then they start at 0 again.
type Stats struct {
	Connections, PacketsIn, PacketsOut, BytesIn, BytesOut uint64
}

// RealStats are the counters of a real server with its present connections. Active TCP connections are established, all
// others are inactive: opening, closing, or of another protocol. Persistence templates are not counted.
type RealStats struct {
	Stats
	Active, Inactive int
}

// Idle reports whether the real server has no connection.
func (s RealStats) Idle() bool { return s.Active+s.Inactive == 0 }
