package sim

import (
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// Owners records the nodes that answer for each VirtualIP, as reachable for clients: a node that is off, stalled or cut
// off does not count.
type Owners struct {
	cluster *Cluster
	by      [][]*Speaker
	last    []*Speaker // the last owner
	none    []int64    // since when there is no owner, -1 if there is one
	several []int64    // since when there are several owners, -1 if there are not
	// Vacant and Doubled are the spans that ended since the last Mark, Moves the changes of owner.
	Vacant, Doubled []Span
	Moves           []Move
}

// Span is a time span of a VirtualIP's state.
type Span struct {
	VIP      int
	From, To time.Duration
}

// Long returns its length.
func (s Span) Long() time.Duration { return s.To - s.From }

// Move records that a VirtualIP moved to a node other than its last owner.
type Move struct {
	VIP      int
	At       time.Duration
	From, To string
	Reason   view.Reason
}

func newOwners(c *Cluster, vips int) *Owners {
	o := &Owners{cluster: c, by: make([][]*Speaker, vips), last: make([]*Speaker, vips), none: make([]int64, vips), several: make([]int64, vips)}
	for i := range o.several {
		o.several[i] = -1
	}
	return o
}

// record updates the record of one VirtualIP on one node.
func (o *Owners) record(vip int, s *Speaker) {
	_, holds := s.holds[vip]
	i := slices.Index(o.by[vip], s)
	is := holds && s.audible()
	if is == (i >= 0) {
		return
	}
	now := o.cluster.now
	if !is {
		o.by[vip] = slices.Delete(o.by[vip], i, i+1)
	} else {
		o.by[vip] = append(o.by[vip], s)
		if o.last[vip] != s {
			m := Move{VIP: vip, At: time.Duration(now), To: s.Name, Reason: s.moved(vip)}
			if o.last[vip] != nil {
				m.From = o.last[vip].Name
			}
			o.Moves = append(o.Moves, m)
			o.last[vip] = s
		}
	}
	o.span(&o.none[vip], len(o.by[vip]) == 0, vip, &o.Vacant)
	o.span(&o.several[vip], len(o.by[vip]) > 1, vip, &o.Doubled)
}

func (o *Owners) span(since *int64, is bool, vip int, over *[]Span) {
	switch now := o.cluster.now; {
	case is && *since < 0:
		*since = now
	case !is && *since >= 0:
		if now > *since {
			*over = append(*over, Span{vip, time.Duration(*since), time.Duration(now)})
		}
		*since = -1
	}
}

// refresh updates the record of a node that became reachable or unreachable for clients.
func (o *Owners) refresh(s *Speaker) {
	for _, vip := range s.held() {
		o.record(vip, s)
	}
}

// Mark clears the record. Spans that last begin now.
func (o *Owners) Mark() {
	o.Vacant, o.Doubled, o.Moves = nil, nil, nil
	for _, since := range [][]int64{o.none, o.several} {
		for i := range since {
			if since[i] >= 0 {
				since[i] = o.cluster.now
			}
		}
	}
}

// Each returns the number of VirtualIPs without an owner, and with several.
func (o *Owners) Each() (vacant, several int) {
	for _, by := range o.by {
		switch {
		case len(by) == 0:
			vacant++
		case len(by) > 1:
			several++
		}
	}
	return vacant, several
}

// One reports whether each VirtualIP has exactly one owner.
func (o *Owners) One() bool {
	vacant, several := o.Each()
	return vacant+several == 0
}

// Balance returns the smallest and the largest number of VirtualIPs of a running node.
func (o *Owners) Balance() (least, most int) {
	led := map[*Speaker]int{}
	for _, by := range o.by {
		for _, s := range by {
			led[s]++
		}
	}
	least = len(o.by)
	for _, s := range o.cluster.Speakers {
		if s.runs() && !s.view.Leaving {
			least, most = min(least, led[s]), max(most, led[s])
		}
	}
	return least, most
}

// Of returns the VirtualIPs that a node owns.
func (o *Owners) Of(s *Speaker) (vips []int) {
	for vip, by := range o.by {
		if slices.Contains(by, s) {
			vips = append(vips, vip)
		}
	}
	return vips
}
