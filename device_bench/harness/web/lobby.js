import { arrive } from './follow.js';

arrive();
