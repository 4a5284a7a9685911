package nftopen

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// List returns what "nft --json list" prints about an object, nil if there is none. It is for what knftables cannot
// list: intervals, and elements with a time-out.
func List(ctx context.Context, object ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nft", append([]string{"--json", "list"}, object...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case err != nil && strings.Contains(stderr.String(), "No such file or directory"):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("nft list %s: %w: %s", strings.Join(object, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
