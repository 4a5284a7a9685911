package nft

// Noticed reports whether a foreign change was detected.
func (f *Filter) Noticed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(nil)
	spoiled := false
	for _, t := range f.tables {
		spoiled = spoiled || t.spoiled
	}
	return spoiled
}

// Lose simulates lost notifications, so that the next Check lists the tables. Earlier detections are discarded.
func (f *Filter) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notice(nil)
	for _, t := range f.tables {
		t.spoiled, t.suspect = false, true
	}
}
