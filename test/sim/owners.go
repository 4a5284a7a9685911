package sim

import (
	"slices"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// Owners notes who answers for each VirtualIP so that clients can hear it: a node that is off, stands still or is cut off does not.
type Owners struct {
	cluster *Cluster
	by      [][]*Speaker
	last    []*Speaker // the one that answered last
	none    []int64    // since when nobody does, -1 if somebody does
	several []int64    // since when several do, -1 if they do not
	// Vacant and Doubled are the times that are over since the last Mark, Moves what came to another node.
	Vacant, Doubled []Span
	Moves           []Move
}

// Span is how long something was so of a VirtualIP.
type Span struct {
	VIP      int
	From, To time.Duration
}

// Long is how long it was.
func (s Span) Long() time.Duration { return s.To - s.From }

// Move is that a VirtualIP came to a node that did not have it last.
type Move struct {
	VIP      int
	At       time.Duration
	From, To string
	Reason   plan.Reason
}

func newOwners(c *Cluster, vips int) *Owners {
	o := &Owners{cluster: c, by: make([][]*Speaker, vips), last: make([]*Speaker, vips), none: make([]int64, vips), several: make([]int64, vips)}
	for i := range o.several {
		o.several[i] = -1
	}
	return o
}

// note brings it up to date about one VirtualIP and one node.
func (o *Owners) note(vip int, s *Speaker) {
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

// refresh brings it up to date about a node that can be heard, or cannot any more.
func (o *Owners) refresh(s *Speaker) {
	for _, vip := range s.held() {
		o.note(vip, s)
	}
}

// Mark forgets what was noted. What lasts began just now.
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

// Each tells how many VirtualIPs nobody, and how many several nodes answer for.
func (o *Owners) Each() (nobody, several int) {
	for _, by := range o.by {
		switch {
		case len(by) == 0:
			nobody++
		case len(by) > 1:
			several++
		}
	}
	return nobody, several
}

// One tells whether each VirtualIP has exactly one owner.
func (o *Owners) One() bool {
	nobody, several := o.Each()
	return nobody+several == 0
}

// Least and Most VirtualIPs of a node that is up.
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

// Of returns the VirtualIPs that a node answers for.
func (o *Owners) Of(s *Speaker) (vips []int) {
	for vip, by := range o.by {
		if slices.Contains(by, s) {
			vips = append(vips, vip)
		}
	}
	return vips
}
