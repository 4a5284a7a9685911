package e2e

import (
	"regexp"
	"strings"

	"github.com/ironlb/ironlb/test/lab/host"
)

func trim(s string) string { return strings.TrimSpace(s) }

func contains(s, part string) bool { return strings.Contains(s, part) }

var macPattern = regexp.MustCompile(`(?i)\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)

// arpingMACs returns the hardware addresses that answered.
func arpingMACs(out string) map[string]bool {
	macs := map[string]bool{}
	for _, m := range macPattern.FindAllString(out, -1) {
		macs[strings.ToLower(m)] = true
	}
	return macs
}

// listener is a program on the node itself that listens on all of its addresses.
func listener(labpod string) host.Cmd {
	return host.Cmd{Argv: []string{labpod, "serve", "the-node-itself"}}
}
