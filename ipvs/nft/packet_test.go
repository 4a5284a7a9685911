package nft_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/ipvstest/packets"
)

// TestPackets runs the cases with a table of DNAT rules instead of the balancer, so that they run on any kernel.
func TestPackets(t *testing.T) {
	packets.Run(t, packets.Options{Open: func(testing.TB, *netspace.Space) packets.Balancer { return translate }})
}

// translate creates table "standin" in each family, which sends every virtual server to its only real server.
func translate(table ipvs.Table) error {
	var script strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		fmt.Fprintf(&script, "add table %s standin\ndelete table %[1]s standin\nadd table %[1]s standin\n", family)
		for _, hook := range []string{"prerouting", "output"} {
			fmt.Fprintf(&script, "add chain %s standin %s { type nat hook %[2]s priority -110; }\n", family, hook)
		}
	}
	for key, virtual := range table {
		family := "ip"
		if key.Addr.Is6() {
			family = "ip6"
		}
		for real, settings := range virtual.RealServers {
			for _, hook := range []string{"prerouting", "output"} {
				if settings.Weight > 0 {
					fmt.Fprintf(&script, "add rule %s standin %s %[1]s daddr %[3]v %[4]s dport %[5]d dnat to %[6]v\n",
						family, hook, key.Addr, strings.ToLower(key.Protocol.String()), key.Port, real)
				}
			}
		}
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}
