package nftlb

import (
	"fmt"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// CountTraffic makes the balancer count the traffic of each virtual server. It must be called before any other method.
// It costs each packet a lookup, and memory for three more elements of each virtual server.
func (b *Balancer) CountTraffic() { b.counted = true }

// VirtualStats returns the counters of all virtual servers, in three requests for each family; none if traffic is not
// counted. They start at 0 when the virtual server is added, and when the table is replaced: by a new process, and after
// another program has changed it.
func (b *Balancer) VirtualStats() (map[ipvs.Key]ipvs.Stats, error) {
	lister, err := nftbatch.NewLister()
	if err != nil {
		return nil, err
	}
	defer lister.Close()
	stats := make(map[ipvs.Key]ipvs.Stats)
	for _, f := range families {
		for _, set := range counterSets {
			elements, err := lister.Elements(f.number, b.scope.Table(), set)
			if err != nil {
				return nil, fmt.Errorf("read the counters of virtual servers: %w", err)
			}
			for _, e := range elements {
				if key, ok := nftbatch.ParseVirtualServer(e.Key); ok {
					s := stats[key]
					switch set {
					case setConnections:
						s.Connections = e.Packets
					case setIncoming:
						s.PacketsIn, s.BytesIn = e.Packets, e.Bytes
					case setOutgoing:
						s.PacketsOut, s.BytesOut = e.Packets, e.Bytes
					}
					stats[key] = s
				}
			}
		}
	}
	return stats, nil
}
