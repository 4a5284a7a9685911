package condition

import (
	"fmt"
	"strings"
)

// Name is the name of an object, or another text, in a list.
type Name string

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
