package direct_test

import (
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

// each runs a test with each family outside of the tunnels.
func each(t *testing.T, run func(*testing.T, *lab)) {
	for _, outer := range families {
		t.Run("over"+outer.name, func(t *testing.T) {
			t.Parallel()
			run(t, newLab(t, outer))
		})
	}
}

// A request reaches the Pod of the slot's node with the client's address.
func TestOnePacket(t *testing.T) {
	each(t, func(t *testing.T, l *lab) {
		for node := range uint16(numNodes) {
			l.direct(t, ipvs.Directed{Slots: spreadOver(node)})
			for _, f := range families {
				for _, network := range []string{"tcp", "udp"} {
					got, err := l.ask(network, f)
					if want := podName(int(node)) + " " + f.client; err != nil || got != want {
						t.Errorf("%s over %s: answer %q, error %v; want %q", network, f.name, got, err, want)
					}
				}
			}
		}
	})
}
