// Package nftopen opens nftables once per process, since each [knftables.New] runs the program nft twice, and lists
// with that program.
package nftopen

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"

	"sigs.k8s.io/knftables"
)

// key is a table, or none for transactions whose objects name their tables, and the program.
type key struct {
	family  knftables.Family
	table   string
	program string
}

var (
	mu     sync.Mutex
	opened = make(map[key]knftables.Interface)
)

// Open is [knftables.New] without options, except that it checks the program nft and the kernel until they pass, and
// not again. A command acts on the network namespace of the calling thread. Transactions of the same table wait for
// each other.
func Open(family knftables.Family, table string) (knftables.Interface, error) {
	program, err := exec.LookPath("nft")
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	k := key{family, table, program}
	if nft, ok := opened[k]; ok {
		return nft, nil
	}
	nft, err := knftables.New(family, table)
	if err == nil {
		opened[k] = nft
	}
	return nft, err
}

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
