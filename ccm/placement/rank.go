package placement

// rank orders the candidates: lower first.
type rank int

const (
	fit rank = iota
	cordoned
	notReady
)

func rankOf(n Node) rank {
	switch {
	case !n.Ready:
		return notReady
	case n.Cordoned:
		return cordoned
	}
	return fit
}
