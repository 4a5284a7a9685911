package member

import (
	"maps"
	"slices"
	"sort"

	"github.com/ironlb/ironlb/speaker/view"
)

// tombstones is how many removed claims are kept before the oldest are deleted. A node that has missed a removal
// detects that by the digest and requests everything.
const tombstones = 1024

// journal is this node's claims of VirtualIPs in the order of their changes. Each change has its own version. So two
// versions name a part of it, and a node that has all up to one version needs only the later changes.
type journal struct {
	version, digest uint64
	at              map[view.VIPID]versionedClaim // with state 0: removed
	order           []change                      // ascending by version; superseded if at has another version
	live            int
}

type versionedClaim struct {
	claim   view.Claim
	version uint64
}

type change struct {
	version uint64
	id      view.VIPID
}

func newJournal() journal { return journal{at: map[view.VIPID]versionedClaim{}} }

// set changes one claim; state 0 removes it. It reports whether anything changed.
func (j *journal) set(id view.VIPID, claim view.Claim) bool {
	have := j.at[id]
	if have.claim == claim {
		return false
	}
	j.digest += weigh(id, claim) - weigh(id, have.claim)
	j.version++
	j.at[id] = versionedClaim{claim, j.version}
	j.order = append(j.order, change{j.version, id})
	if have.claim.State != 0 {
		j.live--
	}
	if claim.State != 0 {
		j.live++
	}
	if len(j.order) > 2*j.live+2*tombstones {
		j.compact()
	}
	return true
}

// compact removes superseded changes and the oldest tombstones.
func (j *journal) compact() {
	excess := len(j.at) - j.live - tombstones
	j.order = slices.DeleteFunc(j.order, func(c change) bool {
		have := j.at[c.id]
		if have.version != c.version {
			return true
		}
		if have.claim.State == 0 && excess > 0 {
			excess--
			delete(j.at, c.id)
			return true
		}
		return false
	})
}

// since returns the changes after a version.
func (j *journal) since(version uint64) []change {
	i := sort.Search(len(j.order), func(i int) bool { return j.order[i].version > version })
	return j.order[i:]
}

// replica is the received part of another node's claims.
type replica struct {
	claims          map[view.VIPID]view.Claim
	version, digest uint64
	// advertisedVersion and advertisedDigest are the version and digest in the newest datagram.
	advertisedVersion, advertisedDigest uint64
	// shared is set while claims is in a snapshot, so that the next change copies it.
	shared bool
	// fresh is the copy that is built when everything is requested again because the digest differs.
	fresh *replica
}

func (r *replica) synced() bool {
	return r.version == r.advertisedVersion && r.digest == r.advertisedDigest
}

// next returns the version after which this node requests claims.
func (r *replica) next() uint64 {
	if r.fresh != nil {
		return r.fresh.version
	}
	return r.version
}

// apply applies a part of the other's journal and reports each VirtualIP whose claim changed.
func (r *replica) apply(after, upTo uint64, entries []entry, changed func(view.VIPID)) {
	if r.fresh != nil && after <= r.fresh.version && upTo > r.fresh.version {
		r.fresh.applyEntries(upTo, entries, func(view.VIPID) {})
	}
	if after <= r.version && upTo > r.version {
		r.applyEntries(upTo, entries, changed)
	}
}

func (r *replica) applyEntries(upTo uint64, entries []entry, changed func(view.VIPID)) {
	for _, e := range entries {
		have := r.claims[e.id]
		if have == e.claim {
			continue
		}
		if r.shared || r.claims == nil {
			r.claims, r.shared = maps.Clone(r.claims), false
			if r.claims == nil {
				r.claims = map[view.VIPID]view.Claim{}
			}
		}
		r.digest += weigh(e.id, e.claim) - weigh(e.id, have)
		if e.claim.State == 0 {
			delete(r.claims, e.id)
		} else {
			r.claims[e.id] = e.claim
		}
		changed(e.id)
	}
	r.version = upTo
}

// reconcile compares the replica with the node's last version and digest. If the digest differs, everything is
// requested again; the new copy replaces the old one once it is complete.
func (r *replica) reconcile(changed func(view.VIPID)) {
	if f := r.fresh; f != nil && f.version >= r.advertisedVersion {
		for id, claim := range f.claims {
			if r.claims[id] != claim {
				changed(id)
			}
		}
		for id := range r.claims {
			if _, still := f.claims[id]; !still {
				changed(id)
			}
		}
		r.claims, r.version, r.digest, r.shared, r.fresh = f.claims, f.version, f.digest, false, nil
	}
	if r.fresh == nil && r.version > 0 && r.version == r.advertisedVersion && r.digest != r.advertisedDigest {
		r.fresh = &replica{}
	}
}

// weigh is the share of one claim in the digest, which is their sum: it distinguishes sets of claims that differ by
// accident, not by design.
func weigh(id view.VIPID, c view.Claim) uint64 {
	if c.State == 0 {
		return 0
	}
	h := mix(uint64(id) ^ 0x9e3779b97f4a7c15)
	h = mix(h ^ uint64(c.State)<<16 ^ uint64(c.Rank)<<24)
	h = mix(h ^ uint64(c.Generation))
	for i := range len(c.Successor) {
		h = mix(h ^ uint64(c.Successor[i]))
	}
	return h
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
