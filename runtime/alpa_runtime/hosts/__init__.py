"""Where workers run: in threads of this process, or in processes of one machine or of many."""
