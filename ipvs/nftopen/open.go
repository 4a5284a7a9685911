// Package nftopen opens nftables once per process, since each [knftables.New] runs the program nft twice, and lists
// with that program.
package nftopen

import (
	"os/exec"
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
