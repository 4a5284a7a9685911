package member

import (
	"encoding/binary"
	"slices"
)

// Two clusters on one network may have the same name, and even the same key. The certificate authority of their API
// servers distinguishes them: each datagram carries its digest. During a rotation there are two certificates
// (Kubernetes: "Manual Rotation of CA Certificates"), and nodes receive them at different times. So one certificate in
// common is enough, and earlier ones count until the process ends, up to maxAuthorities.

// maxAuthorities is the number of digests in a datagram, and so the number that count.
const maxAuthorities = 3

// AuthorityKey returns the digest of a certificate in DER.
func AuthorityKey(certificate []byte) uint64 { return nodeID("authority " + string(certificate)) }

// SetAuthorities changes the digests of the cluster's certificate authority.
func (c *Core) SetAuthorities(now []uint64) {
	all := slices.Clone(now)
	for _, earlier := range c.authorities {
		if !slices.Contains(all, earlier) {
			all = append(all, earlier)
		}
	}
	c.authorities = all[:min(len(all), maxAuthorities)]
}

// appendCluster writes the digests of this node's cluster.
func (c *Core) appendCluster(b []byte) []byte {
	if len(c.authorities) == 0 {
		return b
	}
	b, at := beginField(b, fieldCluster)
	for _, a := range c.authorities {
		b = binary.BigEndian.AppendUint64(b, a)
	}
	return endField(b, at)
}

// foreign reports whether a message is from a cluster with another certificate authority. A speaker whose
// configuration has none sends none.
func (c *Core) foreign(m *message) bool {
	return len(m.authorities) > 0 && len(c.authorities) > 0 &&
		!slices.ContainsFunc(m.authorities, func(a uint64) bool { return slices.Contains(c.authorities, a) })
}
