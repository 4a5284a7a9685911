package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"
)

// CommunityValue is a community, or a large one (RFC 8092), as it is written in an object.
//
// +kubebuilder:object:generate=false
type CommunityValue struct {
	// Large has three parts, and else there are the first two, of 16 bits each.
	Large bool
	Parts [3]uint32
}

// ParseCommunity reads 65000:1 or large:65000:1:2. It takes what the rules of the kinds take.
func ParseCommunity(text string) (CommunityValue, error) {
	rest, large := strings.CutPrefix(text, "large:")
	parts, bits := 2, 16
	if large {
		parts, bits = 3, 32
	}
	out := CommunityValue{Large: large}
	fields := strings.Split(rest, ":")
	if len(fields) != parts {
		return CommunityValue{}, fmt.Errorf("%q is not a community: write it like 65000:1 or large:65000:1:2", text)
	}
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, bits)
		if err != nil || field != strconv.FormatUint(n, 10) {
			return CommunityValue{}, fmt.Errorf("%q is not a community: %q is no number of %d bits", text, field, bits)
		}
		out.Parts[i] = uint32(n)
	}
	return out, nil
}

// CommunityName reports whether an entry of spec.communities of a BGPAdvertisement is the name of a community.
func CommunityName(entry string) bool { return !strings.Contains(entry, ":") }
