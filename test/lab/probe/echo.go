package probe

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"
)

// PortEcho is a port of every Pod of the lab: TCP, it repeats each line after the Pod's name and the client's address.
const PortEcho = 9191

// Numbered returns a line of a connection, without its end: both numbers, and bytes that follow from these. No two
// connections of a client send equal lines.
func Numbered(conn, line int) string {
	h := fnv.New128a()
	fmt.Fprint(h, conn, " ", line)
	return fmt.Sprintf("%d.%d.%x", conn, line, h.Sum(nil))
}

// Echo returns a Pod's answer to a line.
func Echo(pod, client, line string) string { return pod + " " + client + " " + line + "\n" }

// ParseEcho reads an answer.
func ParseEcho(answer string) (pod, client, line string, err error) {
	parts := strings.Split(strings.TrimSuffix(answer, "\n"), " ")
	if len(parts) != 3 || parts[0] == "" {
		return "", "", "", fmt.Errorf("answer %q is not one of a Pod of the lab", answer)
	}
	if _, err := netip.ParseAddr(parts[1]); err != nil {
		return "", "", "", fmt.Errorf("answer %q: %w", answer, err)
	}
	return parts[0], parts[1], parts[2], nil
}
