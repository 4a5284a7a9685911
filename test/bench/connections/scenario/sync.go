package scenario

import (
	"context"
	"strings"

	"github.com/ironlb/ironlb/test/lab"
)

// sync starts the daemons that send and receive the connections of IPVS, unless they run (ip_vs_sync.c).
func (b *Bench) sync(ctx context.Context, n *lab.Node) error {
	return b.Cluster.Eventually(ctx, patience, n.Name+" has sync daemons", func(ctx context.Context) error {
		running, err := n.Exec(ctx, "ipvsadm", "-l", "--daemon")
		if err != nil {
			return err
		}
		for _, state := range []string{"master", "backup"} {
			if strings.Contains(running, state) {
				continue
			}
			start := []string{"ipvsadm", "--start-daemon", state, "--mcast-interface", "eth0", "--syncid", "1"}
			if _, err := n.Exec(ctx, start...); err != nil {
				return err
			}
		}
		return nil
	})
}
