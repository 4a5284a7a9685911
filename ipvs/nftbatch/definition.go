package nftbatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// definitions are the messages that request the parts of a table, with their attributes that change by themselves: the
// numbers of references and of elements, and counters.
var definitions = []struct {
	request  uint16
	volatile []uint16
}{
	{unix.NFT_MSG_GETTABLE, []uint16{unix.NFTA_TABLE_USE}},
	{unix.NFT_MSG_GETCHAIN, []uint16{unix.NFTA_CHAIN_USE, unix.NFTA_CHAIN_COUNTERS}},
	{unix.NFT_MSG_GETSET, []uint16{nftaSetCount}},
	{unix.NFT_MSG_GETRULE, nil},
	{unix.NFT_MSG_GETOBJ, []uint16{unix.NFTA_OBJ_DATA, unix.NFTA_OBJ_USE}},
	{unix.NFT_MSG_GETFLOWTABLE, []uint16{nftaFlowtableUse}},
}

// NFTA_SET_COUNT and NFTA_FLOWTABLE_USE of include/uapi/linux/netfilter/nf_tables.h.
const nftaSetCount, nftaFlowtableUse = 20, 4

// Definition returns a table without the elements of its sets, in a form that is equal while no program changes a
// chain, a rule, a set or another object of it, and that no other table has: it includes the handles. Without a table
// it is empty. The program nft reads all elements for it (1.0.6, list --terse).
func (l *Lister) Definition(family byte, table string) (string, error) {
	var text strings.Builder
	for _, d := range definitions {
		var attributes []byte
		if d.request == unix.NFT_MSG_GETRULE { // other tables may have many rules
			e := netlink.NewAttributeEncoder()
			e.String(unix.NFTA_RULE_TABLE, table)
			var err error
			if attributes, err = e.Encode(); err != nil {
				return "", err
			}
		}
		answers, err := l.dump(d.request, family, attributes)
		switch {
		case d.request > unix.NFT_MSG_GETRULE && errors.Is(err, unix.EINVAL): // this kernel has no such objects
			continue
		case err != nil:
			return "", fmt.Errorf("list nftables table %s: %w", table, err)
		}
		for _, a := range answers {
			if err := addDefinition(&text, table, d.request, d.volatile, a); err != nil {
				return "", fmt.Errorf("list nftables table %s: %w", table, err)
			}
		}
	}
	return text.String(), nil
}

// addDefinition appends an object if it belongs to the table: attribute 1 of each kind has the name of the table.
func addDefinition(text *strings.Builder, table string, request uint16, volatile []uint16, message []byte) error {
	var object strings.Builder
	ours := false
	err := each(message, func(kind uint16, value []byte) error {
		ours = ours || kind == unix.NFTA_TABLE_NAME && unix.ByteSliceToString(value) == table
		if !slices.Contains(volatile, kind) {
			fmt.Fprintf(&object, " %d:%q", kind, value)
		}
		return nil
	})
	if ours {
		fmt.Fprintf(text, "%d%s\n", request, object.String())
	}
	return err
}
