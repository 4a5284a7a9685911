package speaker

import (
	"context"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
)

// state is what the node was seen to hold of ours, kept up to date while it is changed.
type state struct {
	table  ipvs.Table
	filter ipvs.Filter
	// whole is set if the filter is in force as filter says.
	whole bool
	addrs map[netip.Addr]struct{}
	// foreign are the node's addresses that are not ours.
	foreign map[netip.Addr]struct{}
	// sysctls is why the kernel's settings are not as they must be.
	sysctls error
	// reason of the changes of this round.
	reason string
}

// observe reads what the node holds of ours and corrects its sysctls.
func (s *Speaker) observe(ctx context.Context) error {
	before := s.known
	s.known = nil
	addrs, foreign, err := s.cfg.Node.Addresses.List()
	if err != nil {
		return err
	}
	whole, err := s.cfg.Node.Filter.Check(ctx)
	if err != nil {
		return err
	}
	var filter ipvs.Filter
	if before != nil {
		filter = before.filter // if it is no longer in force it is built anew
	} else if filter, err = s.cfg.Node.Filter.List(ctx); err != nil {
		return err
	}
	table, err := s.list(before, union(addrs, addresses(filter), s.desired.Without(foreign).Local))
	if err != nil {
		return err
	}
	changed, sysctlErr := s.cfg.Node.Sysctls.Apply()
	for _, setting := range changed {
		s.log("set sysctl", "setting", setting)
	}
	s.known = &state{table: table, filter: filter, whole: whole, addrs: addrs, foreign: foreign, sysctls: sysctlErr}
	s.audited = time.Now()
	return nil
}

// list returns the virtual servers of our addresses. Between two full lists a look at the virtual servers alone tells
// whether another is needed.
func (s *Speaker) list(before *state, ours map[netip.Addr]struct{}) (ipvs.Table, error) {
	if before != nil && time.Since(s.listed) < s.relist {
		virtuals, err := s.cfg.Node.VirtualServers.Virtuals()
		if err != nil {
			return nil, err
		}
		if same(virtuals, before.table, ours) {
			return before.table, nil
		}
	}
	start := time.Now()
	table, err := s.cfg.Node.VirtualServers.ListOf(ours)
	if err != nil {
		return nil, err
	}
	s.listed = time.Now()
	s.relist = min(restShare*s.listed.Sub(start), relistMost)
	return table, nil
}

// same tells whether of the virtual servers those of our addresses are as the table says.
func same(virtuals map[ipvs.Key]ipvs.Settings, table ipvs.Table, ours map[netip.Addr]struct{}) bool {
	found := 0
	for key, settings := range virtuals {
		if _, our := ours[key.Addr]; !our {
			continue
		}
		vs, known := table[key]
		if !known || vs.Settings != settings {
			return false
		}
		found++
	}
	return found == len(table)
}
