package loop

// Trigger sends on a channel of size one unless it is full.
func Trigger(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
