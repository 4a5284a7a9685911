// Package condition has the names of the conditions that several kinds have in common, and the form of lists in their
// messages: the first ten names and the number of the others.
package condition

import (
	"fmt"
	"strings"
)

// Problem is a reason with its message.
type Problem struct{ Reason, Message string }

// Name is the name of an object, or another text, in a list.
type Name string

// Ready is the type of the condition that reports whether an object is in use as specified.
const Ready = "Ready"

// Reasons of the condition Ready that several kinds have in common.
const (
	ReasonRead            = "Read"
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonUnknownPool of an advertisement: a pool that it selects does not exist.
	ReasonUnknownPool = "UnknownPool"
	// ReasonUnknownInterface of an L2Advertisement: no node has one of its interfaces.
	ReasonUnknownInterface = "UnknownInterface"
	// ReasonRepeatedSelector: a selector is in its list twice.
	ReasonRepeatedSelector = "RepeatedSelector"
)

// Warnings is the type of the condition of a managed Service while there are warnings for its author. Most Services
// have none.
const Warnings = "ironlb.io/Warnings"

// String returns the text.
func (t Name) String() string { return string(t) }

// Some names the first ten and counts the others.
func Some[T fmt.Stringer](keys []T) string {
	const most = 10
	if len(keys) <= most {
		return Join(keys, ", ")
	}
	return fmt.Sprintf("%s and %d more", Join(keys[:most], ", "), len(keys)-most)
}

// Join is strings.Join for Stringers.
func Join[T fmt.Stringer](items []T, sep string) string {
	texts := make([]string, len(items))
	for i, it := range items {
		texts[i] = it.String()
	}
	return strings.Join(texts, sep)
}

// Names converts a list of texts.
func Names(in []string) []Name {
	out := make([]Name, len(in))
	for i, s := range in {
		out[i] = Name(s)
	}
	return out
}
